package judge;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** One JSON object per line in, one per line out; {@code tests/interop/judge.py} is the other side. */
public final class Main {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream replies = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // output of libraries must not look like a reply
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Session session = new Session()) {
            String line;
            while ((line = requests.readLine()) != null) {
                JsonObject request = JsonParser.parseString(line).getAsJsonObject();
                replies.println(GSON.toJson(answer(session, request)));
                replies.flush();
            }
        }
    }

    private static JsonObject answer(Session session, JsonObject request) {
        JsonObject reply;
        try {
            reply = session.perform(request.get("op").getAsString(), request);
            reply.addProperty("ok", true);
        } catch (Throwable thrown) { // an assertion or an OutOfMemoryError of the library is also a result
            reply = new JsonObject();
            reply.addProperty("ok", false);
            reply.addProperty("error", thrown.getClass().getName());
            reply.addProperty("message", String.valueOf(thrown.getMessage()));
            thrown.printStackTrace();
        }
        return reply;
    }
}
