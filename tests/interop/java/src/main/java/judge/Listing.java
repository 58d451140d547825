package judge;

import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;

import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** Writes all messages of a queue, open or not, to a file: one line each, with index and payload in hexadecimal. */
final class Listing {
    private Listing() {
    }

    static JsonObject write(JsonObject request) throws Exception {
        SingleChronicleQueueBuilder builder = SingleChronicleQueueBuilder
                .binary(request.get("path").getAsString()).timeoutMS(1000);
        long count = 0;
        try (SingleChronicleQueue queue = builder.build();
             BufferedWriter lines = Files.newBufferedWriter(
                     Path.of(request.get("into").getAsString()), StandardCharsets.US_ASCII)) {
            if (Session.flag(request, "end_cycles"))
                queue.createAppender().close(); // writes missing end marks
            try (ExcerptTailer tailer = queue.createTailer().toStart()) {
                while (one(tailer, lines))
                    count++;
            }
        }
        JsonObject reply = new JsonObject();
        reply.addProperty("messages", count);
        return reply;
    }

    private static boolean one(ExcerptTailer tailer, BufferedWriter lines) throws Exception {
        try (DocumentContext document = tailer.readingDocument()) {
            if (!document.isPresent())
                return false;
            Bytes<?> bytes = document.wire().bytes();
            byte[] payload = new byte[(int) bytes.readRemaining()];
            bytes.read(payload);
            lines.write(Long.toHexString(document.index()));
            lines.write(' ');
            lines.write(Values.hex(payload));
            lines.write('\n');
            return true;
        }
    }
}
