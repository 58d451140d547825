package judge;

import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * One of two processes; benchmarks/peers.py is the other side. Each line of standard input starts with the number of
 * messages to process. {@code send PATH PAYLOAD LAST} (both in hex) then prints "done". {@code receive PATH} polls
 * without a pause and prints the last message.
 */
public final class Peer {
    private Peer() {
    }

    private interface Round {
        String run(long count) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        PrintStream replies = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // output of libraries must not look like a reply
        try (SingleChronicleQueue queue = SingleChronicleQueueBuilder.binary(args[1]).build()) {
            if (args[0].equals("send"))
                try (ExcerptAppender appender = queue.createAppender()) {
                    Bytes<?> payload = Bytes.allocateDirect(Values.bytes(args[2]));
                    Bytes<?> last = Bytes.allocateDirect(Values.bytes(args[3]));
                    serve(replies, count -> send(appender, payload, last, count));
                    payload.releaseLast();
                    last.releaseLast();
                }
            else
                try (ExcerptTailer tailer = queue.createTailer()) {
                    serve(replies, count -> receive(tailer, count));
                }
        }
    }

    private static void serve(PrintStream replies, Round round) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        replies.println("ready");
        replies.flush();
        String line;
        while ((line = requests.readLine()) != null) {
            replies.println(round.run(Long.parseLong(line.split(" ")[0])));
            replies.flush();
        }
    }

    private static String send(ExcerptAppender appender, Bytes<?> payload, Bytes<?> last, long count) {
        long length = payload.readRemaining();
        for (long left = count; left > 1; left--) {
            payload.readPositionRemaining(0, length);
            appender.writeBytes(payload);
        }
        last.readPositionRemaining(0, length);
        appender.writeBytes(last);
        return "done";
    }

    private static String receive(ExcerptTailer tailer, long count) {
        byte[] payload = new byte[0];
        while (count > 0) {
            try (DocumentContext document = tailer.readingDocument()) {
                if (!document.isPresent()) {
                    Thread.onSpinWait();
                    continue;
                }
                Bytes<?> bytes = document.wire().bytes();
                int length = (int) bytes.readRemaining();
                if (payload.length != length)
                    payload = new byte[length];
                bytes.read(payload);
                count--;
            }
        }
        return Values.hex(payload);
    }
}
