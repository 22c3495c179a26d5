/* crc.h - CRC-32C (Castagnoli), as iSCSI and ext4 use it: "123456789" gives e3069283. */
#ifndef TC_CRC_H
#define TC_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Local. The CRC-32C of what `crc` was made of followed by p[bytes]; 0 to begin. */
uint32_t tc_crc32c(uint32_t crc, const void *p, size_t bytes);

#endif
