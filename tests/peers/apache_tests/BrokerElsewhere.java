package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.pop.orderly.ConsumerOrderInfoManager;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.broker.topic.TopicQueueMappingCleanService;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicConfigAndQueueMapping;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A broker of another process. What tests ask of its tables and its store, and what they change of its settings, is
 * asked and changed by requests.
 */
class BrokerElsewhere extends BrokerController {
    private static final long TIMEOUT_MS = 5000;
    private static final long RECENT_MS = 50;

    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);
    private MessageStore store;
    private TopicConfigManager topics;
    private SubscriptionGroupManager groups;
    private ConsumerOffsetManager offsets;
    private final ConsumerOrderInfoManager orderedQueues = new OrderedQueues();

    BrokerElsewhere(SettingsElsewhere config, NettyServerConfig server, MessageStoreConfig storeConfig)
        throws Exception {
        super(config, server, new NettyClientConfig(), storeConfig);
        admin.setNamesrvAddr(config.getNamesrvAddr());
        admin.setInstanceName("admin-of-" + config.getBrokerName());
        admin.start();
        config.sendTo(admin, getBrokerAddr());
        store = new Store(storeConfig, getBrokerStatsManager(), config);
        topics = new Topics();
        groups = new Groups();
        offsets = new Offsets();
    }

    /** Asks something; the tables of Apache's broker throw nothing that must be declared. */
    private interface Question<T> {
        T ask() throws Exception;
    }

    private static <T> T answer(Question<T> question) {
        try {
            return question.ask();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private MQClientAPIImpl requests() {
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    private MessageQueue queue(String topic, int queueId) {
        return new MessageQueue(topic, getBrokerConfig().getBrokerName(), queueId);
    }

    /** Does nothing: the broker serves the tests that follow. */
    @Override
    public void shutdown() {
    }

    /** Does nothing: the broker registers its topics by itself. */
    @Override
    public synchronized void registerBrokerAll(boolean checkOrderConfig, boolean oneway, boolean forced) {
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return topics == null ? super.getTopicConfigManager() : topics;
    }

    @Override
    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return groups == null ? super.getSubscriptionGroupManager() : groups;
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets == null ? super.getConsumerOffsetManager() : offsets;
    }

    /** Returns a service that does not run: the broker's own cleans at a short interval. */
    @Override
    public TopicQueueMappingCleanService getTopicQueueMappingCleanService() {
        return new TopicQueueMappingCleanService(this);
    }

    @Override
    public ConsumerOrderInfoManager getConsumerOrderInfoManager() {
        return orderedQueues == null ? super.getConsumerOrderInfoManager() : orderedQueues;
    }

    private class Store extends DefaultMessageStore {
        Store(MessageStoreConfig storeConfig, BrokerStatsManager stats, BrokerConfig config) throws IOException {
            super(storeConfig, stats, null, config, new ConcurrentHashMap<>());
        }

        @Override
        public long dispatchBehindBytes() {
            return 0;  // a stored message is in its queue
        }

        @Override
        public long getMinOffsetInQueue(String topic, int queueId) {
            return answer(() -> requests().getMinOffset(getBrokerAddr(), queue(topic, queueId), TIMEOUT_MS));
        }

        @Override
        public long getMaxOffsetInQueue(String topic, int queueId) {
            return answer(() -> requests().getMaxOffset(getBrokerAddr(), queue(topic, queueId), TIMEOUT_MS));
        }

        /** Drops the queues of static topics: the topic is deleted, and its settings and its mapping are set again. */
        @Override
        public int cleanUnusedTopic(Set<String> retained) {
            Set<String> unused = new HashSet<>(topics.getTopicConfigTable().keySet());
            unused.removeAll(retained);
            return unused.stream().mapToInt(topic -> answer(() -> dropQueues(topic))).sum();
        }

        private int dropQueues(String topic) throws Exception {
            TopicConfigAndQueueMapping config = requests().getTopicConfig(getBrokerAddr(), topic, TIMEOUT_MS);
            if (config.getMappingDetail() == null) {
                return 0;
            }
            requests().deleteTopicInBroker(getBrokerAddr(), topic, TIMEOUT_MS);
            requests().createStaticTopic(
                getBrokerAddr(), "TBW102", config, config.getMappingDetail(), true, TIMEOUT_MS);
            return 1;
        }
    }

    private class Topics extends TopicConfigManager {
        @Override
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            return answer(() -> admin.getAllTopicConfig(getBrokerAddr(), TIMEOUT_MS)).getTopicConfigTable();
        }

        @Override
        public void updateTopicConfig(TopicConfig config) {
            answer(() -> {
                admin.createAndUpdateTopicConfig(getBrokerAddr(), config);
                return null;
            });
        }
    }

    private class Groups extends SubscriptionGroupManager {
        @Override
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            SubscriptionGroupConfig found = answer(() -> admin.examineSubscriptionGroupConfig(getBrokerAddr(), group));
            if (found == null) {  // Apache's broker creates it
                found = new SubscriptionGroupConfig();
                found.setGroupName(group);
                updateSubscriptionGroupConfig(found);
            }
            return found;
        }

        @Override
        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig config) {
            answer(() -> {
                admin.createAndUpdateSubscriptionGroupConfig(getBrokerAddr(), config);
                return null;
            });
        }
    }

    /** An answer that is asked for again after a moment: a test asks for one queue after the other. */
    private static class Recent<T> {
        private T answer;
        private String about;
        private long atMs;

        synchronized T get(String subject, Question<T> question) {
            if (!subject.equals(about) || System.currentTimeMillis() - atMs > RECENT_MS) {
                answer = answer(question);
                about = subject;
                atMs = System.currentTimeMillis();
            }
            return answer;
        }
    }

    private class Offsets extends ConsumerOffsetManager {
        private final Recent<ConsumerOffsetSerializeWrapper> committed = new Recent<>();
        private final Recent<ConsumeStats> progress = new Recent<>();

        /** Returns 0 for a queue without an offset, as the progress of a group has it, which tests compare with. */
        @Override
        public long queryOffset(String group, String topic, int queueId) {
            return committed.get("all", () -> getBrokerOuterAPI().getAllConsumerOffset(getBrokerAddr()))
                .getOffsetTable()
                .getOrDefault(topic + "@" + group, new ConcurrentHashMap<>())
                .getOrDefault(queueId, 0L);
        }

        @Override
        public long queryPullOffset(String group, String topic, int queueId) {
            String subject = topic + "@" + group;
            return progress.get(subject, () -> requests().getConsumeStats(getBrokerAddr(), group, topic, TIMEOUT_MS))
                .getOffsetTable().get(queue(topic, queueId)).getPullOffset();
        }
    }

    private class OrderedQueues extends QueueLevelConsumerManager {
        /** Pops one message: none comes from a blocked queue, but the response says that some are left. */
        @Override
        public boolean checkBlock(String attemptId, String topic, String group, int queueId, long invisibleTime) {
            PopMessageRequestHeader header = new PopMessageRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(queueId);
            header.setMaxMsgNums(1);
            header.setInvisibleTime(invisibleTime);
            header.setPollTime(0);
            header.setBornTime(0);  // when it arrives, however busy the machine is
            header.setInitMode(ConsumeInitMode.MIN);
            header.setOrder(true);
            header.setAttemptId(attemptId);
            CompletableFuture<PopResult> popped = new CompletableFuture<>();
            return answer(() -> {
                String name = getBrokerConfig().getBrokerName();
                requests().popMessageAsync(name, getBrokerAddr(), header, TIMEOUT_MS, new PopCallback() {
                    @Override
                    public void onSuccess(PopResult result) {
                        popped.complete(result);
                    }

                    @Override
                    public void onException(Throwable error) {
                        popped.completeExceptionally(error);
                    }
                });
                return popped.get().getPopStatus() != PopStatus.FOUND && popped.get().getRestNum() > 0;
            });
        }
    }
}
