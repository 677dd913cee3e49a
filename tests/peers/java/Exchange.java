import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Apache's own producer and push consumer exchange messages: half are sent before the consumer starts, half while it runs.
 *
 * Arguments: name server address, topic, number of messages. Prints `sent=N received=N`.
 */
public class Exchange {
    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);

        Set<String> received = ConcurrentHashMap.newKeySet();
        CountDownLatch missing = new CountDownLatch(count);

        DefaultMQProducer producer = new DefaultMQProducer(topic + "-producer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        int sent = send(producer, topic, 0, count / 2);

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-consumer");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (received.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    missing.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        sent += send(producer, topic, count / 2, count);
        missing.await(60, TimeUnit.SECONDS);
        System.out.printf("sent=%d received=%d%n", sent, received.size());
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    private static int send(DefaultMQProducer producer, String topic, int from, int to) throws Exception {
        int accepted = 0;
        for (int number = from; number < to; number++) {
            Message message = new Message(topic, "tag", ("message " + number).getBytes(StandardCharsets.UTF_8));
            if (producer.send(message).getSendStatus() == SendStatus.SEND_OK) {
                accepted++;
            }
        }
        return accepted;
    }
}
