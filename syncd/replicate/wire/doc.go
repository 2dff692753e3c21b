// Package wire encodes and decodes the messages of mapsync.v1 that the generated code does not handle,
// or would handle too slowly.
//
//   - [Encoder] encodes records of a table into batches, and [Batch] decodes them in place. Both convert
//     in one pass, without an allocation per delta. The format is plain protobuf: the stock encoder and
//     decoder interoperate with them.
//   - [Codec] passes encoded batches to and from gRPC without a copy. Their buffers are pooled.
//   - [SchemaToProto] and [SchemaFromProto] convert the schema of a map, [NodeDigestToProto] and
//     [DigestsFromProto] digests, [EncodeBucketSet] and [DecodeBucketSet] sets of buckets.
//
// A message of a peer can have any content. The decoders accept nothing that the stock decoder refuses.
// They check names, sizes, numbers of elements and schemas. They do not check what a message means for
// a stream: positions, permissions, versions and operations. Package replicate does that, and keeps all
// state of streams.
package wire
