/** The options of a volume that is moved to the trash at that time. */
export const keptForAWeek = (deletedAt: number): { readonly deletedAt: number; readonly retention: number } => ({
  deletedAt,
  retention: 7 * 86_400_000,
});
