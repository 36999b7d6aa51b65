// Everything at once; generated kernels include only the headers that their ops name.
#pragma once
#include <litz/vec.h>
#include <litz/divide.h>
#include <litz/math.h>
#include <litz/math64.h>
#include <litz/memory.h>
#include <litz/pieces.h>
#include <litz/random.h>
#include <litz/rare.h>
#include <litz/special.h>
#include <litz/trig.h>
#include <litz/wide.h>
