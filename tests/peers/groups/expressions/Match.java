// Matches regular expressions with RE2/J, as Kafka's group coordinator does. Each line of stdin has
// an expression and names, as words in hex; each line of stdout has a 1 for each name that matches
// as a whole and a 0 for each other one, or "refused".
import com.google.re2j.*;
import java.util.*;
import java.util.stream.*;

public class Match {
    static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), java.nio.charset.StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) {
        new Scanner(System.in).useDelimiter("\n").forEachRemaining(line -> {
            List<String> words = Arrays.stream(line.split(" ", -1)).map(Match::text).toList();
            try {
                Pattern pattern = Pattern.compile(words.get(0));
                System.out.println(words.stream()
                                           .skip(1)
                                           .map(name -> pattern.matcher(name).matches() ? "1" : "0")
                                           .collect(Collectors.joining()));
            } catch (PatternSyntaxException refused) {
                System.out.println("refused");
            }
        });
    }
}
