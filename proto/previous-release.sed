# Names of the wire contract that changed since the previous release: sed commands that rename its
# declarations. scripts/previous-release applies them, because nodes exchange numbers, not names.
s/\<RetellRequest\>/ResendRequest/
s/\<Retold retold = 10;/Resent resent = 10;/
s/\<message Retold\>/message Resent/
s/\<retell = 7;/resend = 7;/
s/\<bool tell_all = 5;/bool send_all = 5;/
s/\<bool again = 5;/bool resend = 5;/
s/\<bool retold = 8;/bool resent = 8;/
s/\<fixed64 key = 3;/fixed64 key_fingerprint = 3;/
s/\<fixed64 scope = 4;/fixed64 scope_fingerprint = 4;/
s/\<fixed64 members = 9;/fixed64 members_fingerprint = 9;/
s/\<string unknown = 8;/string inconclusive_reason = 8;/
s/\<fixed64 loose = 3;/fixed64 version_sum = 3;/
s/\<uint64 untold = 3;/uint64 unsent = 3;/
