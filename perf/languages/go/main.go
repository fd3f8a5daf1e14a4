// Sends records with franz-go, a callback for each. languages.py explains the arguments and the output.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/twmb/franz-go" {
				return module.Version
			}
		}
	}
	return "?"
}

func main() {
	records, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	size, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.DefaultProduceTopic("bench"),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	}
	if size == 100 {
		options = append(options, kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	value := make([]byte, size)
	send := func(records int) {
		var pending sync.WaitGroup
		pending.Add(records)
		for range records {
			client.Produce(context.Background(), &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					panic(err)
				}
				pending.Done()
			})
		}
		pending.Wait()
	}
	send(records / 5)
	usedBefore, start := cpu(), time.Now()
	send(records)
	used, elapsed := cpu()-usedBefore, time.Since(start)
	perRecord := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(records) }
	fmt.Printf("{\"version\": %q, \"cpu_us\": %f, \"wall_us\": %f}\n", version(), perRecord(used), perRecord(elapsed))
}
