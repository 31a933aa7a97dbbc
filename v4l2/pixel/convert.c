//go:build cgo && !purego

#include "convert.h"

#include <libyuv/convert_argb.h>
#include <libyuv/convert_from_argb.h>
#include <libyuv/planar_functions.h>
#include <string.h>

// libyuv's ARGB is B, G, R, A in memory. To have R first, its functions are
// given U and V exchanged and the matrices that are mirrored to match.
static const struct YuvConstants *constants(int matrix, int full) {
    switch (matrix) {
    // libyuv's coefficients end at 2: with BT.709 and BT.2020 in limited range
    // (2.11 and 2.14) a fully saturated blue comes out up to 13 of 255 too low.
    case 1: return full ? &kYvuF709Constants : &kYvuH709Constants;
    case 2: return full ? &kYvuV2020Constants : &kYvu2020Constants;
    default: return full ? &kYvuJPEGConstants : &kYvuI601Constants;
    }
}

typedef int convert_semiplanar(const uint8_t *, int, const uint8_t *, int, uint8_t *, int,
                               const struct YuvConstants *, int, int);

static convert_semiplanar *semiplanar(int v_first) { return v_first ? NV12ToARGBMatrix : NV21ToARGBMatrix; }

// To libyuv a line of packed 4:2:2 is pairs of bytes: splitting them leaves a
// line of luma and one of chroma pairs in the first-level cache, which is 4:2:0
// of one line. So it is one pass over the picture, with any matrix. (In one
// step libyuv converts to B, G, R, A, with BT.601 in limited range only.)
int pixel_packed422(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                    int y_first, int v_first, int matrix, int full, int width, int height) {
    uint8_t y[PIXEL_MAX_WIDTH], chroma[PIXEL_MAX_WIDTH];
    uint8_t *first = y_first ? y : chroma, *second = y_first ? chroma : y;
    const struct YuvConstants *k = constants(matrix, full);
    int even = (width + 1) & ~1;
    for (int row = 0; row < height; row++, src += src_stride, dst += dst_stride) {
        SplitUVPlane(src, src_stride, first, even, second, even, even, 1);
        int rc = semiplanar(v_first)(y, even, chroma, even, dst, dst_stride, k, width, 1);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int pixel_semiplanar(const uint8_t *y, int y_stride, const uint8_t *chroma, int chroma_stride,
                     uint8_t *dst, int dst_stride, int v_first, int vshift, int matrix, int full, int width, int height) {
    const struct YuvConstants *k = constants(matrix, full);
    if (vshift == 1)
        return semiplanar(v_first)(y, y_stride, chroma, chroma_stride, dst, dst_stride, k, width, height);
    // 4:2:2 is 4:2:0 of one line, for each line.
    for (int row = 0; row < height; row++) {
        int rc = semiplanar(v_first)(y + (long)row * y_stride, y_stride, chroma + (long)row * chroma_stride, chroma_stride,
                                     dst + (long)row * dst_stride, dst_stride, k, width, 1);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int pixel_planar(const uint8_t *y, int y_stride, const uint8_t *u, int u_stride, const uint8_t *v, int v_stride,
                 uint8_t *dst, int dst_stride, int vshift, int matrix, int full, int width, int height) {
    const struct YuvConstants *k = constants(matrix, full);
    if (vshift == 1)
        return I420ToARGBMatrix(y, y_stride, v, v_stride, u, u_stride, dst, dst_stride, k, width, height);
    return I422ToARGBMatrix(y, y_stride, v, v_stride, u, u_stride, dst, dst_stride, k, width, height);
}

int pixel_grey(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
               int matrix, int full, int width, int height) {
    return I400ToARGBMatrix(src, src_stride, dst, dst_stride, constants(matrix, full), width, height);
}

// A line at a time loses its low bits, in the cache.
int pixel_grey16(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                 int bits, int matrix, int full, int width, int height) {
    uint8_t line[PIXEL_MAX_WIDTH];
    const struct YuvConstants *k = constants(matrix, full);
    for (int row = 0; row < height; row++, src += src_stride, dst += dst_stride) {
        Convert16To8Plane((const uint16_t *)src, width, line, width, 1 << (24 - bits), width, 1);
        int rc = I400ToARGBMatrix(line, width, dst, dst_stride, k, width, 1);
        if (rc != 0)
            return rc;
    }
    return 0;
}

// libyuv's RAW is R, G, B in memory and its RGB24 is B, G, R; both become
// B, G, R, A. Naming the source the other way round exchanges R and B.
int pixel_rgb24(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                int b_first, int width, int height) {
    return b_first ? RAWToARGB(src, src_stride, dst, dst_stride, width, height)
                   : RGB24ToARGB(src, src_stride, dst, dst_stride, width, height);
}

// One loop for each order that occurs, with shifts known to the compiler, so
// that it is vectorised.
#define RGB32(R, G, B)                                                                             \
    for (int row = 0; row < height; row++, src += src_stride, dst += dst_stride)                   \
        for (int x = 0; x < width; x++) {                                                          \
            uint32_t p;                                                                            \
            memcpy(&p, src + 4 * x, 4);                                                            \
            p = 0xff000000u | (p >> (8 * (B)) & 0xff) << 16 | (p >> (8 * (G)) & 0xff) << 8 | (p >> (8 * (R)) & 0xff); \
            memcpy(dst + 4 * x, &p, 4);                                                            \
        }

void pixel_rgb32(const uint8_t *restrict src, int src_stride, uint8_t *restrict dst, int dst_stride,
                 int r, int g, int b, int width, int height) {
    switch (r) {
    case 0: RGB32(0, 1, 2) break;
    case 1: RGB32(1, 2, 3) break;
    case 2: RGB32(2, 1, 0) break;
    case 3: RGB32(3, 2, 1) break;
    }
}

// libyuv makes YUYV of B, G, R, A only: a few lines at a time are turned round, in
// the cache.
void pixel_to_yuyv(const uint8_t *src, int src_stride, uint8_t *dst, int width, int height) {
    uint8_t strip[4 * PIXEL_MAX_WIDTH];
    int lines = PIXEL_MAX_WIDTH / width;
    for (int row = 0; row < height; row += lines) {
        int n = height - row < lines ? height - row : lines;
        ABGRToARGB(src + (long)row * src_stride, src_stride, strip, 4 * width, width, n);
        ARGBToYUY2(strip, 4 * width, dst + 2L * row * width, 2 * width, width, n);
    }
}
