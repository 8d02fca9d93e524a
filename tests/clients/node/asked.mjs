// What every client asks, and where.
export const url = process.env.KVASIR_URL;
export const model = process.env.KVASIR_MODEL;
export const key = process.env.KVASIR_KEY ?? "none";
export const question = "The capital of France is";
export const talk = [{ role: "user", content: "Name three colours." }];
