import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The real mqadmin, many commands in one JVM: a call of its own costs six seconds, most of them spent on starting Java.
 *
 * Each line of standard input holds the words of one command, separated by tabs. Whatever the command prints, on either
 * stream, comes back behind its length in bytes.
 */
public class AdminShell {
    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, "UTF-8");
            System.setOut(capture);
            System.setErr(capture);
            MQAdminStartup.main0(line.split("\t"), null);
            capture.flush();
            answers.printf("%d\n", printed.size());
            printed.writeTo(answers);
            answers.flush();
        }
    }
}
