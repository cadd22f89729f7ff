// A group member with kafka-clients 0.9 or later. Arguments: host:port, topic, group and settings
// NAME=VALUE. Prints one line of JSON per event until its standard input is closed. A topic that
// begins with ^ is a regular expression that the group coordinator evaluates.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
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
        config.put("reconnect.backoff.max.ms", "200");
        config.put("metadata.max.age.ms", "1000");
        List<String> settings = List.of(args).subList(3, args.length);
        if (!settings.contains("group.protocol=consumer")) {
            config.put("session.timeout.ms", "10000");
            config.put("heartbeat.interval.ms", "300");
        }
        settings.forEach(one
                -> config.put(
                        one.substring(0, one.indexOf('=')), one.substring(one.indexOf('=') + 1)));
        try (KafkaConsumer<String, String> consumer
                = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            subscribe(consumer, args[1], new Listener(consumer, records));
            while (System.in.available() == 0) {
                poll(consumer).forEach(records::add);
                if (records.isEmpty()) {
                    continue;
                }
                try {
                    consumer.commitSync();
                } catch (KafkaException failure) {
                    // The next commit covers these records too, unless the partition moves to
                    // another member, which then reads them again.
                    say("{\"failed\": \"" + failure.getClass().getSimpleName() + "\"}");
                    continue;
                }
                for (ConsumerRecord<String, String> record : records) {
                    say("{\"read\": [" + record.partition() + ", " + record.offset() + ", \""
                            + record.value() + "\"]}");
                }
                records.clear();
            }
        }
        say("{\"closed\": true}");
    }

    private static void subscribe(KafkaConsumer<?, ?> consumer, String topic, Listener listener)
            throws Exception {
        if (!topic.startsWith("^")) {
            consumer.subscribe(List.of(topic), listener);
            return;
        }
        // Added in 4.0.
        Class<?> pattern = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        KafkaConsumer.class.getMethod("subscribe", pattern, ConsumerRebalanceListener.class)
            .invoke(consumer, pattern.getConstructor(String.class).newInstance(topic), listener);
    }

    // poll(Duration) was added in 2.0, and poll(long) was removed in 4.0.
    @SuppressWarnings("unchecked")
    private static ConsumerRecords<String, String> poll(KafkaConsumer<String, String> consumer)
            throws Exception {
        try {
            return (ConsumerRecords<String, String>)
                    KafkaConsumer.class.getMethod("poll", Duration.class)
                            .invoke(consumer, Duration.ofMillis(100));
        } catch (NoSuchMethodException older) {
            return (ConsumerRecords<String, String>)
                    KafkaConsumer.class.getMethod("poll", long.class)
                            .invoke(consumer, 100L);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private record Listener(KafkaConsumer<?, ?> consumer,
            List<ConsumerRecord<String, String>> records) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            has(partitions);
        }

        // Called since 2.4.
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            has(partitions);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            // With a cooperative assignor the argument has only the new partitions.
            has(List.of());
        }

        private void has(Collection<TopicPartition> gone) {
            records.removeIf(
                    one -> gone.contains(new TopicPartition(one.topic(), one.partition())));
            say("{\"at\": " + System.nanoTime() + ", \"assigned\": ["
                    + consumer.assignment()
                              .stream()
                              .filter(one -> !gone.contains(one))
                              .map(TopicPartition::partition)
                              .sorted()
                              .map(String::valueOf)
                              .collect(Collectors.joining(", "))
                    + "]}");
        }
    }
}
