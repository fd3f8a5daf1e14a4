// Prints murmur2_java.json: what Kafka's own Java client computes for a fixed list of keys.
//
//     mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.1.0 -DoutputDirectory=.
//     mvn dependency:copy -Dartifact=org.slf4j:slf4j-api:1.7.36 -DoutputDirectory=.
//     java -cp kafka-clients-4.1.0.jar:slf4j-api-1.7.36.jar MurmurVectors.java > murmur2_java.json

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.StringJoiner;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Utils;

public class MurmurVectors {
    private static final int[] PARTITION_COUNTS = {1, 2, 3, 7, 50, 1000, Integer.MAX_VALUE};

    public static void main(String[] args) {
        List<byte[]> keys = new ArrayList<>();
        for (String key : new String[] {"", "a", "kafka", "21", "foobar", "abc", "1468509572224", "\u00fc\u4e2d"})
            keys.add(key.getBytes(StandardCharsets.UTF_8));
        Random random = new Random(20240501);
        for (int length = 1; length <= 64; length++)
            for (int repeat = 0; repeat < 3; repeat++) {
                byte[] key = new byte[length];
                random.nextBytes(key);
                keys.add(key);
            }

        System.out.println("{");
        System.out.println(" \"generated_by\": \"MurmurVectors.java: Utils.murmur2 and"
            + " BuiltInPartitioner.partitionForKey of kafka-clients " + AppInfoParser.getVersion() + "\",");
        System.out.println(" \"partition_counts\": " + row(PARTITION_COUNTS) + ",");
        System.out.println(" \"vectors\": [");
        for (int i = 0; i < keys.size(); i++) {
            byte[] key = keys.get(i);
            int[] partitions = new int[PARTITION_COUNTS.length];
            for (int j = 0; j < partitions.length; j++)
                partitions[j] = BuiltInPartitioner.partitionForKey(key, PARTITION_COUNTS[j]);
            System.out.println("  {\"key\": \"" + HexFormat.of().formatHex(key) + "\", \"murmur2\": "
                + Utils.murmur2(key) + ", \"partitions\": " + row(partitions) + "}"
                + (i + 1 < keys.size() ? "," : ""));
        }
        System.out.println(" ]");
        System.out.println("}");
    }

    private static String row(int[] values) {
        StringJoiner joined = new StringJoiner(", ", "[", "]");
        for (int value : values)
            joined.add(Integer.toString(value));
        return joined.toString();
    }
}
