/**
 * Stops Apache's clients without their pause: a thread of theirs looks only every three seconds whether it should end,
 * and whoever stops a client waits for that thread. Woken, it looks at once. Threads of clients that go on look too, and
 * find no reason to end.
 */
final class Hurry {
    private static final String SLEEPER = "NettyEventExecutor";

    private Hurry() {
    }

    interface Work {
        void run() throws Exception;
    }

    static void through(Work work) throws Exception {
        Thread waker = new Thread(Hurry::wakeOn, "waker");
        waker.setDaemon(true);
        waker.start();
        try {
            work.run();
        } finally {
            waker.interrupt();
        }
    }

    private static void wakeOn() {
        try {
            while (true) {
                Thread.sleep(50);
                Thread[] threads = new Thread[Thread.activeCount() + 100];
                int count = Thread.enumerate(threads);
                for (int at = 0; at < count; at++) {
                    if (threads[at].getName().startsWith(SLEEPER)) {
                        threads[at].interrupt();
                    }
                }
            }
        } catch (InterruptedException done) {
            Thread.currentThread().interrupt();
        }
    }
}
