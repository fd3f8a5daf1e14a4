import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** Sends records with Kafka's own producer, a callback for each. languages.py explains the arguments and the output. */
public final class Bench {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private static void send(KafkaProducer<byte[], byte[]> producer, int records, byte[] value) throws InterruptedException {
        CountDownLatch pending = new CountDownLatch(records);
        for (int i = 0; i < records; i++) {
            producer.send(new ProducerRecord<>("bench", value), (metadata, error) -> {
                if (error != null) {
                    error.printStackTrace();
                    System.exit(1);
                }
                pending.countDown();
            });
        }
        pending.await();
    }

    public static void main(String[] arguments) throws InterruptedException {
        int records = Integer.parseInt(arguments[1]);
        byte[] value = new byte[Integer.parseInt(arguments[2])];
        Map<String, Object> options = value.length == 100
            ? Map.of("bootstrap.servers", arguments[0], "linger.ms", "5")
            : Map.of("bootstrap.servers", arguments[0]);
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            // As many as are measured: the JVM compiles its code meanwhile.
            send(producer, records, value);
            long used = SYSTEM.getProcessCpuTime();
            long start = System.nanoTime();
            send(producer, records, value);
            long elapsed = System.nanoTime() - start;
            used = SYSTEM.getProcessCpuTime() - used;
            System.out.printf("{\"version\": \"%s\", \"cpu_us\": %f, \"wall_us\": %f}%n",
                AppInfoParser.getVersion(), used / 1e3 / records, elapsed / 1e3 / records);
        }
    }
}
