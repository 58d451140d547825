package judge;

/** Either. */
public enum Side {
    BUY, SELL
}
