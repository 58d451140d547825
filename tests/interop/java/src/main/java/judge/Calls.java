package judge;

import net.openhft.chronicle.bytes.MethodId;
import net.openhft.chronicle.wire.Marshallable;

import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZonedDateTime;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** A method for every kind of argument except BytesStore, for which Java generates readers that do not compile. */
public interface Calls {
    void none();

    void text(String text);

    void flag(boolean flag);

    void character(char character);

    void i8(byte number);

    void i16(short number);

    void i32(int number);

    void i64(long number);

    void f32(float number);

    void f64(double number);

    void boxedLong(Long number);

    void boxedDouble(Double number);

    void bytes(byte[] bytes);

    void date(LocalDate date);

    void time(LocalTime time);

    void dateTime(LocalDateTime dateTime);

    void zoned(ZonedDateTime zoned);

    void uuid(UUID uuid);

    void side(Side side);

    void any(Object object);

    void list(List<Object> list);

    void map(Map<String, Object> map);

    void quote(Quote quote);

    void marshallable(Marshallable object);

    void two(String text, long number);

    void five(String text, int number, double price, boolean flag, Quote quote);

    @MethodId(5)
    void numbered(long number);

    To to(String destination);

    /** The result of {@link Calls#to}: both calls form one message. */
    interface To {
        void say(String text);

        To via(long hop);
    }
}
