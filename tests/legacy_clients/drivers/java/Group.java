// The group half of the Java driver: a member that reads, commits and leaves. For 0.9 and later, as
// Consume.java.

import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

public final class Group {
    public static void run(Map<String, String> options, List<String> spans) throws Exception {
        String[] span = spans.get(0).split(":");
        Properties settings = Consume.settings(options);
        settings.put("group.id", options.get("group"));
        if (options.containsKey("session")) {
            settings.put("session.timeout.ms", options.get("session"));
            settings.put("heartbeat.interval.ms", "500");
        }
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(Collections.singletonList(span[0]));
        read(consumer, Integer.parseInt(span[1]),
                System.nanoTime() + Driver.timeoutMs(options) * 1_000_000L);
        Driver.OUT.flush();
        // Leaves the group.
        consumer.close();
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer, int missing, long deadline)
            throws Exception {
        while (missing > 0) {
            if (System.nanoTime() > deadline)
                throw new IllegalStateException("timed out, records still missing: " + missing);
            // What comes after the records that were printed: a poll may well have brought more.
            Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> one : Consume.poll(consumer)) {
                if (missing == 0) break;
                Consume.print(one);
                next.put(new TopicPartition(one.topic(), one.partition()),
                        new OffsetAndMetadata(one.offset() + 1));
                missing--;
            }
            if (!next.isEmpty()) consumer.commitSync(next);
        }
    }
}
