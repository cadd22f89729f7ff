import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in one process, which spares most of their time: each argument is a main class and its arguments with
 * tabs between them. After what a tool printed, which need not end a line, stands a line with its exit code. What tools write to System.err
 * goes to stdout, too; the process's stderr is left to the JVM.
 */
public class Tools {
    public static void main(String[] commands) throws Exception {
        System.setErr(System.out);
        // A tool's exit is only noted: it is the last thing that a tool does, and some would catch whatever were thrown here.
        List<Integer> exits = new ArrayList<>();
        Exit.setExitProcedure((code, message) -> exits.add(code));
        for (String command : commands) {
            String[] words = command.split("\t");
            exits.clear();
            try {
                Object arguments = Arrays.copyOfRange(words, 1, words.length);
                Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
            } catch (InvocationTargetException ended) {
                if (exits.isEmpty()) {
                    // As when the tool had its own process.
                    System.out.println("Exception: " + ended.getCause());
                    exits.add(1);
                }
            }
            System.out.println("\nexit code " + (exits.isEmpty() ? 0 : exits.get(0)));
            System.out.flush();
        }
        // Some tools leave threads behind.
        Runtime.getRuntime().halt(0);
    }
}
