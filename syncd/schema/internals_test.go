package schema

// Internals that the external tests of this package use.

var (
	CodecTimes      = codecTimes
	NewCodec        = newCodec
	CheckCodecError = checkCodecError
	Masked          = masked
)

const Slack = slack
