// Everything at once; generated kernels include only the headers that their ops name.
#pragma once
#include <litz/vec.h>
#include <litz/divide.h>
#include <litz/math.h>
#include <litz/memory.h>
#include <litz/reduce.h>
