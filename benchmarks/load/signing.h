/* Signatures of requests for servers with access control: HMAC-SHA1 in Base64. LOAD_KEY=NAME:SECRET turns them on. */
#ifndef SIGNING_H
#define SIGNING_H

#include "remoting.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define SIGNATURE_CHARS 28
#define SHA1_BYTES 20

typedef struct {
    uint32_t state[5];
    uint64_t bytes;
    uint8_t block[64];
} sha1;

static const char *signing_name; /* NULL: requests are not signed */
static sha1 inner_start, outer_start;

static inline uint32_t rotate(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

#if defined(__x86_64__)
#define WITH_SHA __attribute__((target("sha,ssse3,sse4.1")))

static int has_sha_instructions(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

/* Four rounds; the kind of round must be a constant. */
static inline WITH_SHA __m128i four_rounds(__m128i abcd, __m128i e, int kind) {
    switch (kind) {
    case 0: return _mm_sha1rnds4_epu32(abcd, e, 0);
    case 1: return _mm_sha1rnds4_epu32(abcd, e, 1);
    case 2: return _mm_sha1rnds4_epu32(abcd, e, 2);
    default: return _mm_sha1rnds4_epu32(abcd, e, 3);
    }
}

/* As the other one below, in a tenth of the time: the load must not be what limits a server. */
static WITH_SHA void sha1_block_by_instructions(sha1 *hash) {
    const __m128i big_endian = _mm_set_epi64x(0x0001020304050607ll, 0x08090a0b0c0d0e0fll);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)hash->state), 0x1b), first = abcd, w[4];
    __m128i e = _mm_set_epi32((int)hash->state[4], 0, 0, 0), first_e = e, last = abcd;
#pragma GCC unroll 20
    for (int i = 0; i < 20; i++) {
        __m128i *now = &w[i % 4];
        if (i < 4)
            *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)hash->block + i), big_endian);
        else
            *now = _mm_sha1msg2_epu32(
                _mm_xor_si128(_mm_sha1msg1_epu32(*now, w[(i + 1) % 4]), w[(i + 2) % 4]), w[(i + 3) % 4]);
        e = i ? _mm_sha1nexte_epu32(last, *now) : _mm_add_epi32(e, *now);
        last = abcd;
        abcd = four_rounds(abcd, e, i / 5);
    }
    e = _mm_sha1nexte_epu32(last, first_e);
    _mm_storeu_si128((__m128i *)hash->state, _mm_shuffle_epi32(_mm_add_epi32(abcd, first), 0x1b));
    hash->state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}
#endif

static void sha1_block_by_steps(sha1 *hash) {
    uint32_t w[80], *s = hash->state, a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
    for (int i = 0; i < 16; i++) w[i] = get32((const char *)hash->block + 4 * i);
    for (int i = 16; i < 80; i++) w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f, k;
        if (i < 20) f = (b & c) | (~b & d), k = 0x5a827999;
        else if (i < 40) f = b ^ c ^ d, k = 0x6ed9eba1;
        else if (i < 60) f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
        else f = b ^ c ^ d, k = 0xca62c1d6;
        uint32_t next = rotate(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e;
}

static void (*sha1_block)(sha1 *) = sha1_block_by_steps;

static void sha1_add(sha1 *hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes) {
        size_t held = hash->bytes % 64, taken = bytes < 64 - held ? bytes : 64 - held;
        memcpy(hash->block + held, at, taken);
        hash->bytes += taken, at += taken, bytes -= taken;
        if (hash->bytes % 64 == 0) sha1_block(hash);
    }
}

static void sha1_end(sha1 *hash, char out[SHA1_BYTES]) {
    uint64_t bits = hash->bytes * 8;
    char length[8];
    put32(length, (uint32_t)(bits >> 32));
    put32(length + 4, (uint32_t)bits);
    sha1_add(hash, "\x80", 1);
    while (hash->bytes % 64 != 56) sha1_add(hash, "", 1);
    sha1_add(hash, length, 8);
    for (int i = 0; i < 5; i++) put32(out + 4 * i, hash->state[i]);
}

static void start_with_key(sha1 *hash, const char *secret, uint8_t pad) {
    *hash = (sha1){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
    uint8_t key[64] = {0};
    memcpy(key, secret, strlen(secret));
    for (int i = 0; i < 64; i++) key[i] ^= pad;
    sha1_add(hash, key, 64);
}

/* Reads LOAD_KEY. */
static void prepare_signing(void) {
    char *given = getenv("LOAD_KEY"), *colon = given ? strchr(given, ':') : NULL;
    if (!given) return;
    if (!colon || strlen(colon + 1) > 64) die("LOAD_KEY must be NAME:SECRET, with a secret of at most 64 bytes");
#if defined(__x86_64__)
    if (has_sha_instructions()) sha1_block = sha1_block_by_instructions;
#endif
    *colon = 0;
    signing_name = given;
    start_with_key(&inner_start, colon + 1, 0x36);
    start_with_key(&outer_start, colon + 1, 0x5c);
}

/* Writes the signature of the values of all fields, in the order of their names, and the body. */
static void sign(const char *values, size_t bytes, const char *body, size_t body_bytes, char out[SIGNATURE_CHARS + 1]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char digest[SHA1_BYTES + 1] = {0};
    sha1 hash = inner_start;
    sha1_add(&hash, values, bytes);
    sha1_add(&hash, body, body_bytes);
    sha1_end(&hash, digest);
    hash = outer_start;
    sha1_add(&hash, digest, SHA1_BYTES);
    sha1_end(&hash, digest);
    for (int i = 0; i < 7; i++) {
        const uint8_t *three = (const uint8_t *)digest + 3 * i;
        uint32_t bits = (uint32_t)three[0] << 16 | (uint32_t)three[1] << 8 | (i < 6 ? three[2] : 0);
        for (int j = 0; j < 4; j++) out[4 * i + j] = digits[bits >> (18 - 6 * j) & 63];
    }
    out[27] = '=';
    out[28] = 0;
}

#endif
