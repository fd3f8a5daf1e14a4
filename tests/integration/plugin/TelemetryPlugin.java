import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** Writes each push of client metrics to a file of its own, in the directory of the property telemetry.dir. */
public class TelemetryPlugin implements MetricsReporter, ClientTelemetry {
    private final Path directory = Path.of(System.getProperty("telemetry.dir"));
    private final AtomicInteger count = new AtomicInteger();

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            ByteBuffer data = payload.data();
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            String end = payload.isTerminating() ? "last" : "next";
            String name = "%06d-%s-%s".formatted(count.incrementAndGet(), payload.clientInstanceId(), end);
            try {
                // Renamed when it is complete, so that no test reads half of it.
                Path part = Files.write(directory.resolve("." + name), bytes);
                Files.move(part, directory.resolve(name), StandardCopyOption.ATOMIC_MOVE);
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        };
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void configure(Map<String, ?> configs) {
    }

    @Override
    public void close() {
    }
}
