import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Sends at a rate for a time: name servers, topic, sends per second, seconds. Prints the bodies of acknowledged and failed sends as JSON. */
final class SteadySender {
    private static final int THREADS = 8;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        double rate = Double.parseDouble(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("steady-sender");
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(1000);
        producer.start();
        List<String> acknowledged = Collections.synchronizedList(new ArrayList<>());
        List<String> failed = Collections.synchronizedList(new ArrayList<>());
        List<String> errors = Collections.synchronizedList(new ArrayList<>());
        System.out.println("started");
        long began = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int thread = 0; thread < THREADS; thread++) {
            int first = thread;
            threads.add(new Thread(() -> {
                for (long number = first; ; number += THREADS) {
                    long due = began + (long) (number / rate * 1e9);
                    try {
                        long pause = due - System.nanoTime();
                        if (pause > 0) {
                            Thread.sleep(pause / 1_000_000, (int) (pause % 1_000_000));
                        }
                        if ((System.nanoTime() - began) / 1e9 > seconds) {
                            return;
                        }
                        boolean ok = producer.send(new Message(topic, ("java." + number).getBytes()))
                            .getSendStatus() == SendStatus.SEND_OK;
                        (ok ? acknowledged : failed).add("java." + number);
                    } catch (Exception error) {
                        failed.add("java." + number);
                        errors.add(String.valueOf(error).replaceAll("[\"\\\\\n]", " "));
                    }
                }
            }));
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("{\"acknowledged\":" + list(acknowledged) + ",\"failed\":" + list(failed)
            + ",\"errors\":" + list(errors) + "}");
        System.exit(0);
    }

    private static String list(List<String> texts) {
        return texts.isEmpty() ? "[]" : "[\"" + String.join("\",\"", texts) + "\"]";
    }
}
