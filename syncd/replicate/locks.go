package replicate

// The order of locks.
//
// A goroutine takes these locks in this order only, and may omit any of them:
//
//  1. nodeVerifier.mu
//  2. Replicator.mu
//  3. inboundStream.mu
//  4. localMap.mu
//  5. the lock of a table (table.Update, View, NewCursor and Cursor.Close)
//  6. deliveries.mu, exceptions.mu and sentTraffic.mu, one at a time
//
// outboundStream.mu comes before localMap.mu and is never held together with Replicator.mu or
// inboundStream.mu. An outbound stream that needs the replicator calls it after it has released its
// own lock (subscribe). The replicator collects the outbound streams under its lock and calls them
// afterwards (Resync, Status). Apart from these locks, code that holds the lock of a table reads
// only atomic values: a view, the state of an outbound map stream.
