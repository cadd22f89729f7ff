// What RE2/J makes of expressions, as Kafka's group coordinator uses it. Each line of stdin is a row of words in hex, an expression and names;
// each line of stdout says which of the names it matches whole, a 0 or 1 for each, or "refused".
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
                System.out.println(words.stream().skip(1).map(name -> pattern.matcher(name).matches() ? "1" : "0").collect(Collectors.joining()));
            } catch (PatternSyntaxException refused) {
                System.out.println("refused");
            }
        });
    }
}
