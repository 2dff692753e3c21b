package main

import "slices"

// attacks returns all attacks, in the order of their adversaries.
func attacks() []attack {
	return slices.Concat(outsiderAttacks(), slowReaderAttacks(), localUserAttacks(), gossipAttacks(), nonMemberAttacks(), memberAttacks(), answerAttacks(), restartAttacks(), restoredAttacks(), formerAttacks(), escapeAttacks())
}
