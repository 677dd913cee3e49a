package org.apache.rocketmq.test.base;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/**
 * Takes the place of the class of this name in Apache's test jar, which starts Apache's servers in the process of the
 * tests. This one says where ours are: `skyroute.nameServer` is a port, `skyroute.brokers` a list of `name=port`.
 */
public class IntegrationTestBase {
    private static final int TOPIC_WAIT_S = 30;
    private static final String[] BROKERS = System.getProperty("skyroute.brokers").split(",");
    private static final AtomicInteger NEXT = new AtomicInteger();
    private static final BufferedReader RUNNER = new BufferedReader(new InputStreamReader(System.in));
    private static final Map<SettingsElsewhere, BrokerController> STARTED = new ConcurrentHashMap<>();

    /** Takes back what a class of tests changed of the brokers' settings. */
    public static void restoreSettings() {
        STARTED.keySet().forEach(SettingsElsewhere::restore);
    }

    public static NamesrvController createAndStartNamesrv() {
        return new NamesrvController(new NamesrvConfig(), listening(Integer.getInteger("skyroute.nameServer")));
    }

    public static BrokerController createAndStartBroker(String nameServer) {
        String[] nameAndPort = BROKERS[NEXT.getAndIncrement()].split("=");
        SettingsElsewhere config = new SettingsElsewhere();
        config.setBrokerName(nameAndPort[0]);
        config.setBrokerIP1("127.0.0.1");
        config.setNamesrvAddr(nameServer);
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(createBaseDir());
        try {
            BrokerController broker = new BrokerElsewhere(config, listening(Integer.parseInt(nameAndPort[1])), store);
            broker.getBrokerOuterAPI().updateNameServerAddressList(nameServer);
            broker.getBrokerOuterAPI().start();
            STARTED.put(config, broker);
            return broker;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Restarts a broker with other settings: the runner does that, and says when it is done. */
    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig config) {
        boolean concurrently = store.isEnableBuildConsumeQueueConcurrently();
        String setting = "enableBuildConsumeQueueConcurrently=" + concurrently;
        System.out.println("RESTART " + config.getBrokerName() + " " + setting);
        try {
            if (RUNNER.readLine() == null) {
                throw new IOException("the runner has ended");
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        return STARTED.get(config);
    }

    public static void createAndStartProxy(String nameServer) {
        throw new UnsupportedOperationException("a proxy in the process of the tests");
    }

    private static NettyServerConfig listening(int port) {
        NettyServerConfig config = new NettyServerConfig();
        config.setListenPort(port);
        return config;
    }

    public static String createBaseDir() {
        try {
            return Files.createTempDirectory("apache-tests").toString();
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void deleteFile(File file) {
        UtilAll.deleteFile(file);
    }

    public static void initMQAdmin(String nameServer) {
        try {
            MQAdminTestUtils.startAdmin(nameServer);
        } catch (MQClientException error) {
            throw new IllegalStateException(error);
        }
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, CQType type) {
        return initTopic(topic, nameServer, cluster, BaseConf.QUEUE_NUMBERS, type);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, TopicMessageType type) {
        return initTopic(topic, nameServer, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, int queues, CQType type) {
        return initTopic(topic, nameServer, cluster, queues, type, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(
        String topic, String nameServer, String cluster, int queues, CQType type, TopicMessageType messages) {
        return initTopic(topic, nameServer, cluster, queues, type, messages, null);
    }

    public static boolean initTopic(
        String topic, String nameServer, String cluster, int queues, CQType type, TopicMessageType messages, Long lite) {
        Map<String, String> attributes = new HashMap<>();
        if (type != CQType.SimpleCQ) {
            attributes.put("+queue.type", type.toString());
        }
        if (messages != TopicMessageType.NORMAL) {
            attributes.put("+message.type", messages.toString());
        }
        if (lite != null) {
            attributes.put("+lite.topic.expiration", lite.toString());
        }
        return MQAdminTestUtils.createTopic(nameServer, cluster, topic, queues, attributes, TOPIC_WAIT_S);
    }
}
