//go:build !race

package table_test

const raceDetector = false
