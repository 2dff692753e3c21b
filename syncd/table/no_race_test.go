//go:build !race

package table

const RaceDetector = false
