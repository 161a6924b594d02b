import java.nio.ByteBuffer;

/** Reserves 96 MiB in compiled and in interpreted methods, and prints its own stack there. */
public class Frames {
    static ByteBuffer kept;

    interface Step {
        void go(int depth);
    }

    static long warm(int n) {
        long sum = 0;
        for (int i = 0; i < n; i++) sum += i % 7;
        return sum;
    }

    static void reserve() {
        kept = ByteBuffer.allocateDirect(96 << 20);
        for (StackTraceElement at : new Throwable().getStackTrace()) {
            System.out.println(at.getClassName() + "." + at.getMethodName() + " " + at.getFileName() + " " + at.getLineNumber());
        }
    }

    static void nested(int depth) {
        if (depth == 0) reserve();
        else ((Step) Frames::nested).go(depth - 1);
    }

    public static void main(String[] arguments) throws Exception {
        long sum = 0;
        for (int i = 0; i < 20_000; i++) sum += warm(1000);
        Thread thread = new Thread(() -> nested(3), "reserves");
        thread.start();
        thread.join();
        System.out.println("end " + sum);
    }
}
