import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The real mqadmin, many commands in one JVM: a call of its own costs six seconds, most of them spent on starting Java.
 *
 * Each line of standard input holds the words of one command, separated by tabs. Whatever the command prints, on either
 * stream, comes back behind its length in bytes. A first word such as "+2" is for commands that never end: they are
 * interrupted once they have printed so many lines.
 */
public class AdminShell {
    /** Some commands keep a client that they have stopped. Emptied, the list of commands is made anew. */
    private static class Commands extends MQAdminStartup {
        static void run(String[] words) {
            SUB_COMMANDS.clear();
            main0(words, null);
        }
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, "UTF-8");
            System.setOut(capture);
            System.setErr(capture);
            String[] words = line.split("\t");
            if (words[0].startsWith("+")) {
                interrupted(Arrays.copyOfRange(words, 1, words.length), printed, Integer.parseInt(words[0]));
            } else {
                Hurry.through(() -> Commands.run(words));
            }
            capture.flush();
            answers.printf("%d\n", printed.size());
            printed.writeTo(answers);
            answers.flush();
        }
    }

    private static void interrupted(String[] words, ByteArrayOutputStream printed, int lines) throws Exception {
        Thread command = new Thread(() -> Commands.run(words));
        command.start();
        while (command.isAlive() && printed.toString("UTF-8").lines().count() < lines) {
            Thread.sleep(10);
        }
        command.interrupt();
        Hurry.through(command::join);
    }
}
