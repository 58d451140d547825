package judge;

/** The side of an order. */
public enum Side {
    BUY, SELL
}
