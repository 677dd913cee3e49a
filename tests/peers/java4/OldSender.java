import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A producer of the 4.x line. Each argument is "nameServers,topic,accessKey,secretKey"; without keys it does not sign.
 * Each line of output is "ok", the code with which the broker refused, or the error.
 */
public class OldSender {
    public static void main(String[] sends) throws Exception {
        int number = 0;
        for (String send : sends) {
            String[] words = send.split(",");
            RPCHook hook = words.length > 2
                ? new AclClientRPCHook(new SessionCredentials(words[2], words[3])) : null;
            DefaultMQProducer producer = new DefaultMQProducer("AccessOld" + number++, hook);
            producer.setNamesrvAddr(words[0]);
            producer.setInstanceName("old" + number);
            producer.setVipChannelEnabled(false);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
            try {
                producer.send(new Message(words[1], "old".getBytes(StandardCharsets.UTF_8)));
                System.out.println("ok");
            } catch (Exception error) {
                // After its last try, the client throws an MQClientException with the broker's refusal as its cause.
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println(cause instanceof MQBrokerException
                    ? ((MQBrokerException) cause).getResponseCode() : error.toString().replace('\n', ' '));
            }
            producer.shutdown();
        }
        System.exit(0);
    }
}
