package ticks;

import net.openhft.chronicle.bytes.MethodReader;
import net.openhft.chronicle.core.Jvm;
import net.openhft.chronicle.queue.ChronicleQueue;

/** Writes ticks to DIRECTORY/ticks, and reads alerts from DIRECTORY/alerts. */
public final class Feed implements Alerts {
    private static final String[] SYMBOLS = {"ALFA", "BRAVO", "ECHO"};

    private long alerts;
    private boolean done;

    public static void main(String[] args) {
        write(args[0] + "/ticks", Integer.parseInt(args[1]));
        new Feed().listen(args[0] + "/alerts");
    }

    private static void write(String path, int count) {
        try (ChronicleQueue queue = ChronicleQueue.single(path)) {
            Ticks ticks = queue.methodWriter(Ticks.class);
            Tick tick = new Tick();
            for (int number = 0; number < count; number++) {
                tick.symbol = SYMBOLS[number % SYMBOLS.length];
                tick.price = 100 + number % 10;
                tick.time = System.currentTimeMillis() * 1_000_000L;
                ticks.tick(tick);
            }
            ticks.closed(tick);
        }
    }

    private void listen(String path) {
        try (ChronicleQueue queue = ChronicleQueue.single(path)) {
            MethodReader reader = queue.createTailer("feed").methodReader(this);
            while (!done)
                if (!reader.readOne())
                    Jvm.pause(1);
        }
        System.out.println(alerts + " alerts");
    }

    @Override
    public void alert(String symbol, double price) {
        alerts++;
    }

    @Override
    public void done(long sent) {
        done = true;
    }
}
