package judge;

import com.google.gson.JsonArray;
import net.openhft.chronicle.wire.Marshallable;

import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZonedDateTime;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Records the calls that a method reader makes. Not a proxy, because Java generates readers only for classes. */
public final class Recorder implements Calls, Calls.To {
    final JsonArray recorded = new JsonArray();

    void thrown(Throwable thrown) {
        record("!" + thrown.getClass().getSimpleName(), String.valueOf(thrown.getMessage()));
    }

    private void record(String name, Object... arguments) {
        JsonArray described = new JsonArray();
        for (Object argument : arguments)
            described.add(Values.describe(argument));
        JsonArray call = new JsonArray();
        call.add(name);
        call.add(described);
        recorded.add(call);
    }

    @Override
    public void none() {
        record("none");
    }

    @Override
    public void text(String text) {
        record("text", text);
    }

    @Override
    public void flag(boolean flag) {
        record("flag", flag);
    }

    @Override
    public void character(char character) {
        record("character", character);
    }

    @Override
    public void i8(byte number) {
        record("i8", number);
    }

    @Override
    public void i16(short number) {
        record("i16", number);
    }

    @Override
    public void i32(int number) {
        record("i32", number);
    }

    @Override
    public void i64(long number) {
        record("i64", number);
    }

    @Override
    public void f32(float number) {
        record("f32", number);
    }

    @Override
    public void f64(double number) {
        record("f64", number);
    }

    @Override
    public void boxedLong(Long number) {
        record("boxedLong", number);
    }

    @Override
    public void boxedDouble(Double number) {
        record("boxedDouble", number);
    }

    @Override
    public void bytes(byte[] bytes) {
        record("bytes", (Object) bytes);
    }

    @Override
    public void date(LocalDate date) {
        record("date", date);
    }

    @Override
    public void time(LocalTime time) {
        record("time", time);
    }

    @Override
    public void dateTime(LocalDateTime dateTime) {
        record("dateTime", dateTime);
    }

    @Override
    public void zoned(ZonedDateTime zoned) {
        record("zoned", zoned);
    }

    @Override
    public void uuid(UUID uuid) {
        record("uuid", uuid);
    }

    @Override
    public void side(Side side) {
        record("side", side);
    }

    @Override
    public void any(Object object) {
        record("any", (Object) object);
    }

    @Override
    public void list(List<Object> list) {
        record("list", list);
    }

    @Override
    public void map(Map<String, Object> map) {
        record("map", map);
    }

    @Override
    public void quote(Quote quote) {
        record("quote", quote);
    }

    @Override
    public void marshallable(Marshallable object) {
        record("marshallable", object);
    }

    @Override
    public void two(String text, long number) {
        record("two", text, number);
    }

    @Override
    public void five(String text, int number, double price, boolean flag, Quote quote) {
        record("five", text, number, price, flag, quote);
    }

    @Override
    public void numbered(long number) {
        record("numbered", number);
    }

    @Override
    public To to(String destination) {
        record("to", destination);
        return this;
    }

    @Override
    public void say(String text) {
        record("say", text);
    }

    @Override
    public To via(long hop) {
        record("via", hop);
        return this;
    }
}
