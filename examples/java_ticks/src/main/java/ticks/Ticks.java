package ticks;

/** What the feed says; each call is a message. */
public interface Ticks {
    void tick(Tick tick);

    void closed(Tick last);
}
