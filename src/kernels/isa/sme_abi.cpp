// A routine of Arm's procedure call standard ("SME support routines") that compilers expect from their run-time library
// and that older ones lack; linked only then, see module.cmake. A function that wants the matrix unit's accumulator ZA
// for itself calls it if TPIDR2_EL0 is not 0: then a caller left values in ZA and put there the address of a block that
// says where they may be saved:
//   bytes 0-7 the buffer, 8-9 how many rows of ZA, 10-15 reserved and 0
// It stores those rows, each as long as a streaming vector; nothing is left to do without a buffer or rows. A reserved
// byte that is not 0 asks for what this routine does not know: abort. x0 to x13, x19 to x30 and all vectors are kept,
// which is why this is assembler.
asm(R"(
  .arch_extension sme
  .text
  .globl __arm_tpidr2_save
  .type __arm_tpidr2_save, %function
  .variant_pcs __arm_tpidr2_save
  .p2align 4
__arm_tpidr2_save:
  .cfi_startproc
  hint #34                      // bti c
  mrs x14, TPIDR2_EL0
  cbz x14, 2f
  ldp x16, x17, [x14]           // buffer; rows and the reserved bytes
  lsr x15, x17, #16
  cbnz x15, 3f
  cbz x16, 2f
  cbz x17, 2f
  mov w15, wzr
1:
  str za[w15, 0], [x16]
  addsvl x16, x16, #1
  add w15, w15, #1
  cmp w15, w17
  b.lo 1b
2:
  ret
3:
  b abort
  .cfi_endproc
  .size __arm_tpidr2_save, . - __arm_tpidr2_save
)");
