// Runs Kafka's own assignors. Each line of stdin is a group:
//   range 1=3,2=3 a:i1:1,2:1=0.1 b::2:
// with the assignor, the partition count of each topic, and for each member
// member:instance:topics:owned partitions by topic. Each line of stdout is an assignment, or an
// error:
//   a:1=0.1;2=0 b:2=1.2
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.assignor.*;

public class Assign {
    record Member(Optional<String> instanceId, Set<Uuid> subscribedTopicIds,
            Map<Uuid, Set<Integer>> partitions) implements MemberSubscription, MemberAssignment {
        public Optional<String> rackId() { return Optional.empty(); }
    }

    record Group(Map<String, Member> members) implements GroupSpec {
        public Collection<String> memberIds() { return members.keySet(); }
        public SubscriptionType subscriptionType() {
            long different
                    = members.values().stream().map(Member::subscribedTopicIds).distinct().count();
            return different > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS;
        }
        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return members.values().stream().anyMatch(member
                    -> member.partitions().getOrDefault(topic, Set.of()).contains(partition));
        }
        public MemberSubscription memberSubscription(String id) { return members.get(id); }
        public MemberAssignment memberAssignment(String id) { return members.get(id); }
    }

    record Topics(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        public int numPartitions(Uuid topic) { return counts.getOrDefault(topic, -1); }
        public Set<String> racksForPartition(Uuid topic, int partition) { return Set.of(); }
    }

    static Uuid topic(String number) { return new Uuid(7, Long.parseLong(number)); }

    static Stream<String> parts(String text, String separator) {
        return Arrays.stream(text.split(separator)).filter(part -> !part.isEmpty());
    }

    static Member member(String[] words) {
        // The assignors want what cannot be changed, and know it by its class.
        Map<Uuid, Set<Integer>> owned
                = parts(words[3], ";")
                          .map(one -> one.split("="))
                          .collect(Collectors.toMap(one
                                  -> topic(one[0]),
                                  one
                                  -> parts(one[1], "\\.")
                                             .map(Integer::valueOf)
                                             .collect(Collectors.toCollection(TreeSet::new))));
        return new Member(
            Optional.of(words[1]).filter(id -> !id.isEmpty()),
            parts(words[2], ",").map(Assign::topic).collect(Collectors.toCollection(TreeSet::new)),
            Collections.unmodifiableMap(owned));
    }

    static String shown(Map.Entry<String, ? extends MemberAssignment> row) {
        return row.getKey() + ":"
                + row.getValue()
                          .partitions()
                          .entrySet()
                          .stream()
                          .sorted(Map.Entry.comparingByKey())
                          .map(topic
                                  -> topic.getKey().getLeastSignificantBits() + "="
                                          + topic.getValue()
                                                    .stream()
                                                    .sorted()
                                                    .map(String::valueOf)
                                                    .collect(Collectors.joining(".")))
                          .collect(Collectors.joining(";"));
    }

    public static void main(String[] arguments) {
        new Scanner(System.in).useDelimiter("\n").forEachRemaining(line -> {
            String[] words = line.split(" ");
            var counts = parts(words[1], ",")
                                 .map(one -> one.split("="))
                                 .collect(Collectors.toMap(
                                         one -> topic(one[0]), one -> Integer.valueOf(one[1])));
            var members = new TreeMap<String, Member>();
            Arrays.stream(words)
                    .skip(2)
                    .map(word -> word.split(":", -1))
                    .forEach(one -> members.put(one[0], member(one)));
            ConsumerGroupPartitionAssignor assignor
                    = words[0].equals("range") ? new RangeAssignor() : new UniformAssignor();
            try {
                var assigned = new TreeMap<>(
                        assignor.assign(new Group(members), new Topics(counts)).members());
                System.out.println(assigned.entrySet()
                                           .stream()
                                           .map(Assign::shown)
                                           .collect(Collectors.joining(" ")));
            } catch (PartitionAssignorException failure) {
                System.out.println(failure.getMessage());
            }
        });
    }
}
