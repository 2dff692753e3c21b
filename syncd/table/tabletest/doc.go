// Package tabletest simulates clusters of load balancers and daemons for the tests of package table.
//
// A World has one Node per host: the kernel map of a load balancer, and a Daemon with a table. The daemons
// do the work of syncd/daemon, syncd/capture, syncd/kmap and syncd/replicate around real tables, in steps
// that a test can interleave in any way. Time is simulated, and the same steps have the same result.
//
// # Users of a world
//
//   - Simulate runs random work and faults. Everything in a run depends only on its seed.
//   - Explore runs every sequence of actions of a few nodes and one key.
//   - Script runs a scenario that a file describes.
//   - A test may run the steps itself.
//
// # Expected state
//
// After its work a cluster must converge: World.Converge compares the tables, the maps and the digests of
// all nodes. A Model computes the content of the keys that only one load balancer writes. exceptions.go
// lists the cases in which the rules guarantee less than the last write.
//
// # Access to tables
//
// The package uses the exported methods of a table.Table. Internals has the few methods that need more. The
// tests of package table implement it in export_test.go.
package tabletest
