package ticks;

/** The ticks of the feed; each call is a message. */
public interface Ticks {
    void tick(Tick tick);

    void closed(Tick last);
}
