import org.apache.rocketmq.test.base.IntegrationTestBase;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs JUnit classes by name, and prints a line for each test that ends: passed, failed or ignored. */
public class RunTests {
    public static void main(String[] names) throws Exception {
        JUnitCore junit = new JUnitCore();
        junit.addListener(new Lines());
        for (String name : names) {
            junit.run(Class.forName(name));
            IntegrationTestBase.restoreSettings();
        }
        System.exit(0);  // clients of the tests may still run
    }

    private static class Lines extends RunListener {
        private Failure failure;

        @Override
        public void testStarted(Description test) {
            failure = null;
        }

        @Override
        public void testFailure(Failure failed) {
            failure = failed;
            if (failed.getDescription().isSuite()) {  // the class could not be prepared
                testFinished(failed.getDescription());
            }
        }

        @Override
        public void testAssumptionFailure(Failure failed) {
            failure = failed;
        }

        @Override
        public void testIgnored(Description test) {
            say("ignored", test, null);
        }

        @Override
        public void testFinished(Description test) {
            say(failure == null ? "passed" : "failed", test, failure);
        }

        private static void say(String outcome, Description test, Failure failure) {
            String why = failure == null ? "" : " " + failure.getTrace().replaceAll("\\s+", " ");
            System.out.println("TEST " + outcome + " " + test.getDisplayName() + why.substring(0, Math.min(4000, why.length())));
        }
    }
}
