// The consuming half of the Java driver: the "new" consumer of 0.9 and later, on partitions that it
// assigns itself.

import java.lang.reflect.Method;
import java.net.URLEncoder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

public final class Consume {
    private static final long POLL_MS = 200;
    private static final Long BEGINNING = -1L;

    public static void run(Map<String, String> options, List<String> spans) throws Exception {
        Properties settings = settings(options);
        // A wrong offset must be an error, not a silent jump.
        settings.put("auto.offset.reset", "none");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        Map<TopicPartition, Long> missing = new HashMap<>();
        Map<TopicPartition, Long> starts = new HashMap<>();
        for (String span : spans) {
            String[] part = span.split(":");
            TopicPartition where = new TopicPartition(part[0], Integer.parseInt(part[1]));
            starts.put(where, part[2].equals("beginning") ? BEGINNING : Long.valueOf(part[2]));
            missing.put(where, Long.valueOf(part[3]));
        }
        consumer.assign(new ArrayList<>(starts.keySet()));
        for (Map.Entry<TopicPartition, Long> start : starts.entrySet()) {
            if (start.getValue().equals(BEGINNING)) seekToBeginning(consumer, start.getKey());
            else consumer.seek(start.getKey(), start.getValue());
        }
        read(consumer, missing, System.nanoTime() + Driver.timeoutMs(options) * 1_000_000L);
    }

    static Properties settings(Map<String, String> options) throws Exception {
        Properties settings = Driver.common(options);
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        settings.put("key.deserializer", bytes);
        settings.put("value.deserializer", bytes);
        settings.put("enable.auto.commit", "false");
        if (options.containsKey("fetch-bytes"))
            settings.put("max.partition.fetch.bytes", options.get("fetch-bytes"));
        if (options.containsKey("fetch-wait"))
            settings.put("fetch.max.wait.ms", options.get("fetch-wait"));
        return settings;
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer,
            Map<TopicPartition, Long> missing, long deadline) throws Exception {
        missing.values().removeIf(count -> count == 0);
        while (!missing.isEmpty()) {
            if (System.nanoTime() > deadline)
                throw new IllegalStateException("timed out, records still missing: " + missing);
            for (ConsumerRecord<byte[], byte[]> one : poll(consumer)) {
                TopicPartition where = new TopicPartition(one.topic(), one.partition());
                Long count = missing.get(where);
                if (count == null) continue;
                if (count == 1) missing.remove(where);
                else missing.put(where, count - 1);
                print(one);
            }
            Driver.OUT.flush();
        }
    }

    // Timestamps came with 0.10, headers with 0.11.
    private static final Method TIMESTAMP = method("timestamp");
    private static final Method HEADERS = method("headers");

    static void print(ConsumerRecord<byte[], byte[]> one) throws Exception {
        Long at = TIMESTAMP == null ? -1L : (Long) TIMESTAMP.invoke(one);
        StringBuilder line = new StringBuilder();
        line.append(one.topic())
                .append('\t')
                .append(one.partition())
                .append('\t')
                .append(one.offset())
                .append('\t');
        line.append(at < 0 ? "-" : at.toString()).append('\t');
        line.append(Driver.encoded(one.key()))
                .append('\t')
                .append(Driver.encoded(one.value()))
                .append('\t');
        line.append(HEADERS == null ? "-" : headersOf((Iterable<?>) HEADERS.invoke(one)));
        Driver.OUT.print(line.append('\n'));
    }

    private static String headersOf(Iterable<?> headers) throws Exception {
        List<String> texts = new ArrayList<>();
        for (Object header : headers) {
            Class<?> face = Class.forName("org.apache.kafka.common.header.Header");
            String name = (String) face.getMethod("key").invoke(header);
            texts.add(URLEncoder.encode(name, "UTF-8") + "="
                    + Driver.encoded((byte[]) face.getMethod("value").invoke(header)));
        }
        return texts.isEmpty() ? "-" : String.join(",", texts);
    }

    private static Method method(String name) {
        try {
            return ConsumerRecord.class.getMethod(name);
        } catch (NoSuchMethodException older) {
            return null;
        }
    }

    // Of several partitions one after the other until 0.9, of a collection since.
    private static void seekToBeginning(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition where) throws Exception {
        try {
            KafkaConsumer.class.getMethod("seekToBeginning", Collection.class)
                    .invoke(consumer, Collections.singleton(where));
        } catch (NoSuchMethodException older) {
            KafkaConsumer.class.getMethod("seekToBeginning", TopicPartition[].class)
                    .invoke(consumer, (Object) new TopicPartition[] {where});
        }
    }

    // poll(long) until 3.x, poll(Duration) since 2.0: the newer one where there is a choice.
    @SuppressWarnings("unchecked")
    static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer)
            throws Exception {
        try {
            return (ConsumerRecords<byte[], byte[]>)
                    KafkaConsumer.class.getMethod("poll", Duration.class)
                            .invoke(consumer, Duration.ofMillis(POLL_MS));
        } catch (NoSuchMethodException older) {
            return (ConsumerRecords<byte[], byte[]>)
                    KafkaConsumer.class.getMethod("poll", long.class)
                            .invoke(consumer, POLL_MS);
        }
    }
}
