package org.apache.rocketmq.test.base;

import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The settings of a broker of another process. What tests change, the broker changes by request, if it has the setting
 * and can change it while it runs. Of others, such as the choice between Apache's two engines for POP, only this object
 * knows.
 */
class SettingsElsewhere extends BrokerConfig {
    private final Map<String, Runnable> undo = new ConcurrentHashMap<>();
    private DefaultMQAdminExt admin;
    private String address;

    /** Sends later changes to a broker. */
    void sendTo(DefaultMQAdminExt sender, String brokerAddress) {
        admin = sender;
        address = brokerAddress;
    }

    /** Takes all changes back: the broker serves the tests of other classes, too. */
    void restore() {
        undo.values().forEach(Runnable::run);
        undo.clear();
    }

    private <T> void change(String key, T before, T after, Consumer<T> keep) {
        if (!before.equals(after)) {
            send(key, after.toString());
            keep.accept(after);
            undo.putIfAbsent(key, () -> {
                send(key, before.toString());
                keep.accept(before);
            });
        }
    }

    private void send(String key, String value) {
        Properties properties = new Properties();
        properties.setProperty(key, value);
        try {
            admin.updateBrokerConfig(address, properties);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void setPriorityOrderAsc(boolean value) {
        change("priorityOrderAsc", isPriorityOrderAsc(), value, super::setPriorityOrderAsc);
    }

    @Override
    public void setPopFromRetryProbabilityForPriority(int value) {
        int before = getPopFromRetryProbabilityForPriority();
        change("popFromRetryProbabilityForPriority", before, value, super::setPopFromRetryProbabilityForPriority);
    }

    @Override
    public void setUseSeparateRetryQueue(boolean value) {
        change("useSeparateRetryQueue", isUseSeparateRetryQueue(), value, super::setUseSeparateRetryQueue);
    }

    @Override
    public void setUseServerSideResetOffset(boolean value) {
        change("useServerSideResetOffset", isUseServerSideResetOffset(), value, super::setUseServerSideResetOffset);
    }

    @Override
    public void setLongPollingEnable(boolean value) {
        change("longPollingEnable", isLongPollingEnable(), value, super::setLongPollingEnable);
    }

    @Override
    public void setShortPollingTimeMills(long value) {
        change("shortPollingTimeMills", getShortPollingTimeMills(), value, super::setShortPollingTimeMills);
    }

    @Override
    public void setEnableSingleTopicRegister(boolean value) {
        change("enableSingleTopicRegister", isEnableSingleTopicRegister(), value, super::setEnableSingleTopicRegister);
    }
}
