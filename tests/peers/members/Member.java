// A member of a group: host:port, topic and group; a line of JSON an event, until its standard input ends.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Member {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[2]);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("session.timeout.ms", "3000");
        config.put("heartbeat.interval.ms", "300");
        config.put("reconnect.backoff.max.ms", "200");
        config.put("metadata.max.age.ms", "1000");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]), new Listener(consumer));
            while (System.in.available() == 0) {
                List<ConsumerRecord<String, String>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(100)).forEach(records::add);
                if (records.isEmpty()) {
                    continue;
                }
                try {
                    consumer.commitSync();
                } catch (KafkaException failure) {
                    // They will be read again, by whoever has their partition then.
                    say("{\"failed\": \"" + failure.getClass().getSimpleName() + "\"}");
                    continue;
                }
                for (ConsumerRecord<String, String> record : records) {
                    say("{\"read\": [" + record.partition() + ", " + record.offset() + ", \"" + record.value() + "\"]}");
                }
            }
        }
        say("{\"closed\": true}");
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private record Listener(KafkaConsumer<?, ?> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            // What is new alone is told where the assignor is a cooperative one: what it has in all is asked for.
            say("{\"assigned\": [" + consumer.assignment().stream().map(TopicPartition::partition).sorted().map(String::valueOf)
                .collect(Collectors.joining(", ")) + "]}");
        }
    }
}
