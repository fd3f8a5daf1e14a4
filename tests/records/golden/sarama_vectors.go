//go:build ignore

// Prints sarama.json: the partitions Sarama's own partitioners choose for a fixed list of keys.
//
//	go mod init vectors && go get github.com/IBM/sarama@v1.61.1
//	go run sarama_vectors.go > sarama.json
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand"
	"runtime/debug"
	"strings"

	"github.com/IBM/sarama"
)

type vector struct {
	Key       string  `json:"key"`
	FNV1a     uint32  `json:"fnv1a"`
	Hash      []int32 `json:"sarama"`
	Reference []int32 `json:"sarama_reference"`
	CRC       []int32 `json:"consistent"`
}

type document struct {
	GeneratedBy        string   `json:"generated_by"`
	NilIsConsistent    bool     `json:"nil_key_is_hashed"`
	EmptyIsConsistent  bool     `json:"empty_key_is_hashed"`
	NilKeyPartitions   int      `json:"distinct_partitions_of_1000_nil_keys"`
	EmptyKeyPartitions int      `json:"distinct_partitions_of_1000_empty_keys"`
	PartitionCounts    []int32  `json:"partition_counts"`
	Vectors            []vector `json:"vectors"`
}

var partitionCounts = []int32{1, 2, 3, 7, 50, 1000, 2147483647}

func choose(constructor sarama.PartitionerConstructor, key []byte) []int32 {
	partitioner := constructor("topic")
	chosen := []int32{}
	for _, count := range partitionCounts {
		partition, err := partitioner.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, count)
		if err != nil {
			panic(err)
		}
		chosen = append(chosen, partition)
	}
	return chosen
}

func distinct(message *sarama.ProducerMessage) int {
	partitioner := sarama.NewHashPartitioner("topic")
	seen := map[int32]bool{}
	for i := 0; i < 1000; i++ {
		partition, err := partitioner.Partition(message, 10)
		if err != nil {
			panic(err)
		}
		seen[partition] = true
	}
	return len(seen)
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/IBM/sarama" {
			return module.Version
		}
	}
	return "unknown"
}

func main() {
	keys := [][]byte{}
	// The hash of 1468509572224 is 2**31, which has no absolute value as an int32.
	for _, key := range []string{"", "a", "kafka", "1468509572224", "SheetJS", "abc123def456", "\u00fc\u4e2d"} {
		keys = append(keys, []byte(key))
	}
	random := rand.New(rand.NewSource(20240501))
	for length := 1; length <= 64; length++ {
		for repeat := 0; repeat < 3; repeat++ {
			key := make([]byte, length)
			random.Read(key)
			keys = append(keys, key)
		}
	}

	null := &sarama.ProducerMessage{}
	empty := &sarama.ProducerMessage{Key: sarama.ByteEncoder{}}
	dynamic := sarama.NewHashPartitioner("topic").(sarama.DynamicConsistencyPartitioner)
	result := document{
		GeneratedBy: "sarama_vectors.go: NewHashPartitioner, NewReferenceHashPartitioner and" +
			" NewConsistentCRCHashPartitioner of github.com/IBM/sarama " + version(),
		NilIsConsistent:    dynamic.MessageRequiresConsistency(null),
		EmptyIsConsistent:  dynamic.MessageRequiresConsistency(empty),
		NilKeyPartitions:   distinct(null),
		EmptyKeyPartitions: distinct(empty),
		PartitionCounts:    partitionCounts,
	}
	for _, key := range keys {
		hasher := fnv.New32a()
		hasher.Write(key)
		result.Vectors = append(result.Vectors, vector{
			Key:       hex.EncodeToString(key),
			FNV1a:     hasher.Sum32(),
			Hash:      choose(sarama.NewHashPartitioner, key),
			Reference: choose(sarama.NewReferenceHashPartitioner, key),
			CRC:       choose(sarama.NewConsistentCRCHashPartitioner, key),
		})
	}

	out, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	// One vector a line, so that a difference can be read.
	fmt.Println(strings.ReplaceAll(string(out), `{"key"`, "\n{\"key\""))
}
