// Line by line conversions of whole pictures to R, G, B, A bytes, and back.
#ifndef TATOLAB_PIXEL_CONVERT_H
#define TATOLAB_PIXEL_CONVERT_H

#include <stdint.h>

// Widest picture: lines of chroma wait on the stack between two steps.
#define PIXEL_MAX_WIDTH 16384

// matrix: 0 BT.601, 1 BT.709, 2 BT.2020; full: the range is full. The
// functions return 0, or what libyuv returned.
int pixel_packed422(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                    int y_first, int v_first, int matrix, int full, int width, int height);
int pixel_semiplanar(const uint8_t *y, int y_stride, const uint8_t *chroma, int chroma_stride,
                     uint8_t *dst, int dst_stride, int v_first, int vshift, int matrix, int full, int width, int height);
int pixel_planar(const uint8_t *y, int y_stride, const uint8_t *u, int u_stride, const uint8_t *v, int v_stride,
                 uint8_t *dst, int dst_stride, int vshift, int matrix, int full, int width, int height);
int pixel_grey(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
               int matrix, int full, int width, int height);
int pixel_grey16(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                 int bits, int matrix, int full, int width, int height);
int pixel_rgb24(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                int b_first, int width, int height);
// r, g and b are the bytes of a pixel that hold them.
void pixel_rgb32(const uint8_t *src, int src_stride, uint8_t *dst, int dst_stride,
                 int r, int g, int b, int width, int height);
// The other way: R, G, B, A to YUYV without padding, BT.601 in limited range.
void pixel_to_yuyv(const uint8_t *src, int src_stride, uint8_t *dst, int width, int height);

#endif
