import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Scenarios of the official 5.x Java client, in the words of official_client.py. It prints JSON lines.
 *
 * Usage: OfficialClient PROXY SCENARIO ARGUMENTS...
 */
public final class OfficialClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration POLLING = Duration.ofSeconds(5);
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private static ClientConfiguration configuration;

    private OfficialClient() {}

    /** Names, texts and times here need no escapes. */
    private static void tell(String format, Object... values) {
        OUT.println(String.format(format, values));
    }

    private static double now() {
        return System.currentTimeMillis() / 1000.0;
    }

    private static String body(MessageView got) {
        return StandardCharsets.UTF_8.decode(got.getBody().duplicate()).toString();
    }

    private static void describe(MessageView got, double asked) {
        tell("{\"body\": \"%s\", \"attempt\": %d, \"tag\": \"%s\", \"asked\": %.3f, \"at\": %.3f}",
                body(got), got.getDeliveryAttempt(), got.getTag().orElse(""), asked, now());
    }

    private static Map<String, FilterExpression> filter(String topic, String expression) {
        return Collections.singletonMap(topic, new FilterExpression(expression));
    }

    private static Producer producer(String topic) throws ClientException {
        return PROVIDER.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(topic)
                .setTransactionChecker(message -> TransactionResolution.COMMIT)
                .build();
    }

    private static SimpleConsumer consumer(String group, String topic, String expression) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setSubscriptionExpressions(filter(topic, expression))
                .setAwaitDuration(POLLING)
                .build();
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    /** Sends messages: plain, of one message group (fifo), delayed by seconds, or with a tag. */
    private static void send(String topic, int count, List<String> kinds) throws Exception {
        String kind = kinds.isEmpty() ? "" : kinds.get(0);
        try (Producer producer = producer(topic)) {
            for (int at = 0; at < count; at++) {
                double asked = now();
                MessageBuilder message = message(topic, topic + "-" + at);
                if (kind.equals("fifo")) {
                    message.setMessageGroup("one");
                } else if (kind.equals("delay")) {
                    message.setDeliveryTimestamp(System.currentTimeMillis() + Long.parseLong(kinds.get(1)) * 1000);
                } else if (kind.equals("tag")) {
                    message.setTag(kinds.get(1));
                }
                tell("{\"sent\": \"%s\", \"asked\": %.3f}", producer.send(message.build()).getMessageId(), asked);
            }
        }
    }

    /** Receives until `count` messages came, and acknowledges the first `acks` of them. Tells when each was asked for. */
    private static void receive(
            SimpleConsumer consumer, int count, Duration invisible, int acks, Duration timeout) throws Exception {
        long deadline = System.nanoTime() + timeout.toNanos();
        for (int got = 0; got < count && System.nanoTime() < deadline; ) {
            double asked = now();
            for (MessageView found : consumer.receive(16, invisible)) {
                describe(found, asked);
                if (got++ < acks) {
                    consumer.ack(found);
                }
            }
        }
    }

    /** Receives one message, changes its invisible time, and receives it again. */
    private static void change(
            SimpleConsumer consumer, Duration first, Duration second, Duration timeout) throws Exception {
        long deadline = System.nanoTime() + timeout.toNanos();
        for (int seen = 0; seen < 2 && System.nanoTime() < deadline; ) {
            double asked = now();
            for (MessageView found : consumer.receive(1, first)) {
                describe(found, asked);
                if (++seen == 1) {
                    consumer.changeInvisibleDuration(found, second);
                } else {
                    consumer.ack(found);
                }
            }
        }
    }

    /** Consumes with a listener that succeeds or fails, until it was called `count` times. */
    private static void consume(String group, String topic, int count, boolean fails, Duration timeout)
            throws Exception {
        double started = now();
        CountDownLatch calls = new CountDownLatch(count);
        try (AutoCloseable consumer = PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setSubscriptionExpressions(filter(topic, "*"))
                .setMessageListener(got -> {
                    describe(got, started);
                    calls.countDown();
                    return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                })
                .build()) {
            calls.await(timeout.toMillis(), TimeUnit.MILLISECONDS);
        }
    }

    /** Sends one message that is committed, and one that is rolled back. */
    private static void transactions(String topic) throws Exception {
        try (Producer producer = producer(topic)) {
            for (String name : List.of("commit", "rollback")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, name).build(), transaction);
                if (name.equals("commit")) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
                tell("{\"done\": \"%s\"}", name);
            }
        }
    }

    /** Sends a half message and leaves it to the checker; receives it. */
    private static void check(String group, String topic, Duration timeout) throws Exception {
        try (Producer producer = producer(topic); SimpleConsumer consumer = consumer(group, topic, "*")) {
            producer.send(message(topic, "checked").build(), producer.beginTransaction());
            receive(consumer, 1, Duration.ofSeconds(10), 1, timeout);
        }
    }

    private static Duration seconds(String word) {
        return Duration.ofSeconds(Long.parseLong(word));
    }

    private static void run(String scenario, List<String> words) throws Exception {
        switch (scenario) {
            case "send":
                send(words.get(0), Integer.parseInt(words.get(1)), words.subList(2, words.size()));
                break;
            case "transactions":
                transactions(words.get(0));
                break;
            case "check":
                check(words.get(0), words.get(1), seconds(words.get(2)));
                break;
            case "consume":
                consume(words.get(0), words.get(1), Integer.parseInt(words.get(2)), words.get(3).equals("fail"),
                        seconds(words.get(4)));
                break;
            case "receive":
                try (SimpleConsumer consumer =
                        consumer(words.get(0), words.get(1), words.size() > 6 ? words.get(6) : "*")) {
                    receive(consumer, Integer.parseInt(words.get(2)), seconds(words.get(3)),
                            Integer.parseInt(words.get(4)), seconds(words.get(5)));
                }
                break;
            case "change":
                try (SimpleConsumer consumer = consumer(words.get(0), words.get(1), "*")) {
                    change(consumer, seconds(words.get(2)), seconds(words.get(3)), seconds(words.get(4)));
                }
                break;
            default:
                throw new IllegalArgumentException("unknown scenario: " + scenario);
        }
    }

    public static void main(String[] arguments) {
        int status = 0;
        try {
            configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).build();
            run(arguments[1], List.of(arguments).subList(2, arguments.length));
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        System.exit(status); // threads of the client remain
    }
}
