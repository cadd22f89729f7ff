import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools in sequence in one process, which saves most of their start-up time.
 *
 * Each argument is a main class and its arguments, separated by tabs. The output of a tool, which
 * may lack a final newline, is followed by a line with its exit code. System.err is redirected to
 * stdout; the process's stderr is used only by the JVM.
 */
public class Tools {
    public static void main(String[] commands) throws Exception {
        System.setErr(System.out);
        // Record the exit code and return. A tool does nothing after exit(), and some would catch
        // an exception thrown here.
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
                    // What the JVM prints when the tool is the main class.
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
